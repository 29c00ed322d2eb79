{{/* Parts of network policies. */}}

{{- define "daypass.policyHead" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "daypass.fullname" .root }}-{{ .component }}
  labels: {{- include "daypass.labels" . | nindent 4 }}
  {{- if and (eq .component "migrate") (eq .root.Values.migrate.mode "hook") }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-weight: "-5"
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
  {{- end }}
spec:
  podSelector:
    matchLabels: {{- include "daypass.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end -}}

{{- define "daypass.namespaces" -}}
{{- range . }}
- namespaceSelector:
    matchLabels: {{- toYaml . | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "daypass.pods" -}}
podSelector:
  matchLabels: {{- include "daypass.selector" . | nindent 4 }}
{{- end -}}

{{- define "daypass.ports" -}}
{{- range . }}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end -}}

{{/* No rule at all without a peer: Kubernetes takes an empty list for everybody. */}}
{{- define "daypass.toDns" -}}
{{- if or .Values.networkPolicies.dnsPods .Values.networkPolicies.dnsCidrs }}
- to:
    {{- range .Values.networkPolicies.dnsPods }}
    - namespaceSelector:
        matchLabels: {{- toYaml .namespace | nindent 10 }}
      podSelector:
        matchLabels: {{- toYaml .pod | nindent 10 }}
    {{- end }}
    {{- range .Values.networkPolicies.dnsCidrs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range .Values.networkPolicies.dnsPorts }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end -}}

{{- define "daypass.toDatabase" -}}
- ports: [{protocol: TCP, port: {{ .Values.database.port }}}]
  {{- with .Values.networkPolicies.database }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "daypass.toVault" -}}
{{- if include "daypass.usesVault" . }}
{{- $url := urlParse .root.Values.vault.address -}}
{{- $port := default (ternary ":443" ":80" (eq $url.scheme "https")) (regexFind ":[0-9]+$" $url.host) | trimPrefix ":" }}
- ports: [{protocol: TCP, port: {{ $port }}}]
  {{- with .root.Values.networkPolicies.vault }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Networks; of "everything" what is private, shared, local to the link or the machine is left out. */}}
{{- define "daypass.toNetworks" -}}
- to:
    {{- range .cidrs }}
    - ipBlock:
        cidr: {{ . | quote }}
        {{- if eq . "0.0.0.0/0" }}
        except: [10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]
        {{- else if eq . "::/0" }}
        except: ["::1/128", "64:ff9b::/96", "fc00::/7", "fe80::/10"]
        {{- end }}
    {{- end }}
  ports: {{- include "daypass.ports" .ports | nindent 4 }}
{{- end -}}
