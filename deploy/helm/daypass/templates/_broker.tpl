{{/* Settings and files of the broker. */}}

{{- define "daypass.brokerEnv" -}}
{{- $values := .Values.broker -}}
- name: DAYPASS_ISSUER
  value: {{ include "daypass.issuer" . | quote }}
- name: DAYPASS_AUDIENCE
  value: {{ .Values.audience | quote }}
- name: DAYPASS_TRUST_DOMAIN
  value: {{ .Values.trustDomain | quote }}
- name: DAYPASS_PUBLIC_URL
  value: {{ include "daypass.publicUrl" . | quote }}
- name: DAYPASS_LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- include "daypass.databaseEnv" (dict "root" . "login" "broker") }}
- name: DAYPASS_BROKER_INTERNAL
  value: {{ printf "%s:%d" .Values.listenHost (int $values.internalPort) | quote }}
- name: DAYPASS_BROKER_ADMIN
  value: {{ printf "%s:%d" .Values.listenHost (int $values.adminPort) | quote }}
- name: DAYPASS_BROKER_METRICS_LISTEN
  value: {{ printf "%s:%d" .Values.listenHost (int $values.metricsPort) | quote }}
{{- if .Values.tls.enabled }}
- name: DAYPASS_BROKER_TLS_CERT
  value: /run/secrets/daypass/tls/tls.crt
- name: DAYPASS_BROKER_TLS_KEY
  value: /run/secrets/daypass/tls/tls.key
{{- if .Values.tls.handOutCa }}
- name: DAYPASS_CA_FILE
  value: /run/secrets/daypass/proxy-ca/ca.crt
{{- end }}
{{- end }}
- name: DAYPASS_SIGNING
  value: {{ $values.signing }}
{{- if include "daypass.keysOnVolume" . }}
- name: DAYPASS_BROKER_KEYS_DIR
  value: /var/lib/daypass/keys
{{- end }}
{{- if include "daypass.keysInVault" . }}
- name: DAYPASS_TRANSIT_MOUNT
  value: {{ .Values.vault.transitMount | quote }}
- name: DAYPASS_TRANSIT_KEY
  value: {{ .Values.vault.transitKey | quote }}
{{- end }}
- name: DAYPASS_READY_SECONDS
  value: {{ $values.readySeconds | quote }}
- name: DAYPASS_BROKER_DRAIN_SECONDS
  value: {{ $values.drainSeconds | quote }}
{{- with $values.webhooks }}{{ if .existingSecret }}
{{- $files := list }}{{ range .vendors }}{{ $files = append $files (printf "%s=/run/secrets/daypass/webhooks/%s" . .) }}{{ end }}
- name: DAYPASS_WEBHOOK_SECRETS
  value: {{ join "," $files | quote }}
{{- end }}{{ end }}
{{- if $values.issuersCaSecret.name }}
- name: DAYPASS_FEDERATION_CA_FILE
  value: /run/secrets/daypass/issuers-ca/ca.crt
{{- end }}
{{- include "daypass.var" (dict "name" "DAYPASS_TRUSTED_PROXIES" "value" (include "daypass.networks" $values.trustedProxies)) }}
{{- include "daypass.vaultEnv" (dict "root" . "component" "broker") }}
{{- include "daypass.furtherEnv" $values.settings }}
{{- end -}}

{{- define "daypass.brokerMounts" -}}
{{- $root := .root -}}
- {name: tmp, mountPath: /tmp}
{{- include "daypass.databaseMounts" . }}
{{- include "daypass.vaultMounts" . }}
{{- if include "daypass.keysOnVolume" $root }}
- {name: keys, mountPath: /var/lib/daypass}
{{- end }}
{{- if $root.Values.tls.enabled }}
- {name: tls, mountPath: /run/secrets/daypass/tls, readOnly: true}
{{- if $root.Values.tls.handOutCa }}
- {name: proxy-ca, mountPath: /run/secrets/daypass/proxy-ca, readOnly: true}
{{- end }}
{{- end }}
{{- if $root.Values.broker.webhooks.existingSecret }}
- {name: webhooks, mountPath: /run/secrets/daypass/webhooks, readOnly: true}
{{- end }}
{{- if $root.Values.broker.issuersCaSecret.name }}
- {name: issuers-ca, mountPath: /run/secrets/daypass/issuers-ca, readOnly: true}
{{- end }}
{{- if $root.Values.broker.tokenReview }}
- {name: kubernetes, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end -}}

{{- define "daypass.brokerVolumes" -}}
{{- $root := .root -}}
- {name: tmp, emptyDir: {sizeLimit: 64Mi}}
{{- include "daypass.databaseVolumes" . }}
{{- include "daypass.vaultVolumes" . }}
{{- if include "daypass.keysOnVolume" $root }}
- name: keys
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-keys" (include "daypass.fullname" $root)) $root.Values.broker.keys.existingClaim }}
{{- end }}
{{- if $root.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "daypass.tlsSecret" (dict "root" $root "component" "broker") }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- if $root.Values.tls.handOutCa }}
{{ include "daypass.secretFile" (dict "volume" "proxy-ca" "secret" (include "daypass.tlsSecret" (dict "root" $root "component" "proxy")) "key" "ca.crt" "path" "ca.crt") }}
{{- end }}
{{- end }}
{{- with $root.Values.broker.webhooks.existingSecret }}
- name: webhooks
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $root.Values.broker.issuersCaSecret }}{{ if .name }}
{{ include "daypass.secretFile" (dict "volume" "issuers-ca" "secret" .name "key" .key "path" "ca.crt") }}
{{- end }}{{ end }}
{{- if $root.Values.broker.tokenReview }}
- name: kubernetes
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {expirationSeconds: 3607, path: token}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end -}}
