{{/* What all pods have in common: nobody is root, nothing is writable, no token lies about. */}}

{{- define "daypass.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
  # Otherwise the files of a volume, signing keys among them, are opened to the group at each start.
  fsGroupChangePolicy: OnRootMismatch
  {{- if not .root.Values.openshift }}
  {{- $user := int64 .root.Values.userId }}
  runAsUser: {{ $user }}
  runAsGroup: {{ $user }}
  fsGroup: {{ $user }}
  {{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "daypass.containerSecurity" -}}
securityContext:
  runAsNonRoot: true
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* On which nodes pods may run. */}}
{{- define "daypass.nodes" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "daypass.placement" -}}
{{- include "daypass.nodes" .values }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: {{ $.root.Values.topologySpread }}
    labelSelector:
      matchLabels: {{- include "daypass.selector" (dict "root" $.root "component" $.component) | nindent 8 }}
    # Pods of a rollout are spread among themselves, whatever is left of the old ones.
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end -}}

{{/*
Probes on the health listener: a wedged process is restarted after 45 to 55 s, one that starts has
two minutes, and a busy one has 5 s for an answer.
*/}}
{{- define "daypass.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 3
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 5
{{- end -}}

{{/* A pod that works on the schema with the owner's login: migration and prune. */}}
{{- define "daypass.ownerPod" -}}
metadata:
  labels: {{- include "daypass.labels" . | nindent 4 }}
    {{- with .root.Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ include "daypass.fullname" .root }}-{{ .component }}
  {{- include "daypass.podSecurity" . | nindent 2 }}
  {{- include "daypass.nodes" .root.Values.broker | nindent 2 }}
  containers:
    - name: {{ .component }}
      image: {{ include "daypass.image" (dict "root" .root "image" "broker") }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [python, -m, daypass_broker]
      args: {{ toJson .args }}
      env: {{- include "daypass.databaseEnv" (dict "root" .root "login" "owner") | nindent 8 }}
      {{- include "daypass.containerSecurity" . | nindent 6 }}
      resources: {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- if .export }}
        - {name: export, mountPath: /var/lib/daypass/export}
        {{- end }}
        {{- include "daypass.databaseMounts" . | nindent 8 }}
  volumes:
    - {name: tmp, emptyDir: {sizeLimit: 64Mi}}
    {{- with .export }}
    - name: export
      persistentVolumeClaim: {claimName: {{ . }}}
    {{- end }}
    {{- include "daypass.databaseVolumes" (dict "root" .root "login" "owner") | nindent 4 }}
{{- end -}}
