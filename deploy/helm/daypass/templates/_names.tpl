{{/* Names and labels. Every template takes a dict: root, and component where it is about one. */}}

{{- define "daypass.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "daypass.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "daypass.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "daypass.selector" -}}
app.kubernetes.io/name: {{ include "daypass.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "daypass.labels" -}}
{{ include "daypass.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "daypass.image" -}}
{{- $image := index .root.Values.image .image -}}
{{- $name := $image.repository -}}
{{- with .root.Values.image.registry }}{{ $name = printf "%s/%s" . $name }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "daypass.proxyUrl" -}}
{{- $scheme := ternary "https" "http" .Values.tls.enabled -}}
{{- $usual := ternary 443 80 .Values.tls.enabled -}}
{{- $port := .Values.proxy.service.port | int -}}
{{- $suffix := ternary "" (printf ":%d" $port) (eq $port $usual) -}}
{{- printf "%s://%s-proxy.%s.svc%s" $scheme (include "daypass.fullname" .) .Release.Namespace $suffix -}}
{{- end -}}

{{- define "daypass.issuer" -}}
{{- default (include "daypass.proxyUrl" .) .Values.issuer -}}
{{- end -}}

{{- define "daypass.publicUrl" -}}
{{- if .Values.publicUrl -}}
{{- .Values.publicUrl -}}
{{- else if and .Values.ingress.enabled .Values.ingress.host -}}
{{- printf "https://%s" .Values.ingress.host -}}
{{- else -}}
{{- include "daypass.proxyUrl" . -}}
{{- end -}}
{{- end -}}

{{- define "daypass.brokerUrl" -}}
{{- default (printf "http://%s-broker.%s.svc:%d" (include "daypass.fullname" .) .Release.Namespace (int .Values.broker.internalPort)) .Values.proxy.brokerUrl -}}
{{- end -}}

{{/* How many pods there are at least: of the proxy, with autoscaling or without. */}}
{{- define "daypass.fewestProxies" -}}
{{- ternary .Values.proxy.autoscaling.minReplicas .Values.proxy.replicas .Values.proxy.autoscaling.enabled -}}
{{- end -}}

{{/*
Longest way from SIGTERM to the end of a pod, in seconds: not ready, drain, then what
daypass_core/server.py takes at most to cut (3), unwind (5) and close (8), and 9 to spare.
*/}}
{{- define "daypass.grace" -}}
{{- add .readySeconds .drainSeconds 25 -}}
{{- end -}}
