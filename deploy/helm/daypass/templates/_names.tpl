{{/* Names and labels. Every template takes a dict: root, and component where it is about one. */}}

{{- define "daypass.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Begin of object names. A release may have dots in its name, a Service may not. */}}
{{- define "daypass.fullname" -}}
{{- $name := include "daypass.name" . -}}
{{- $usual := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $usual .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Quoted, since a release may be named 2026. */}}
{{- define "daypass.selector" -}}
app.kubernetes.io/name: {{ include "daypass.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "daypass.labels" -}}
{{ include "daypass.selector" . }}
app.kubernetes.io/version: {{ include "daypass.labelValue" .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ include "daypass.labelValue" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) }}
{{- end -}}

{{/* A version may say of which build it is, by a sign that no label may hold: 0.1.0+abc. */}}
{{- define "daypass.labelValue" -}}
{{- replace "+" "_" . | trunc 63 | trimSuffix "-" | trimSuffix "_" | trimSuffix "." -}}
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

{{/* Secret with the certificate of proxy or broker. */}}
{{- define "daypass.tlsSecret" -}}
{{- default (printf "%s-%s-tls" (include "daypass.fullname" .root) .component) (index .root.Values.tls (printf "%sSecret" .component)) -}}
{{- end -}}

{{/* A quantity of memory in MiB. */}}
{{- define "daypass.mebibytes" -}}
{{- $text := include "daypass.plain" . -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1000 "Ki" 1024 "M" 1000000 "Mi" 1048576 "G" 1000000000 "Gi" 1073741824 "T" 1000000000000 "Ti" 1099511627776 -}}
{{- divf (mulf (regexFind "^[0-9.]+" $text) (index $units (regexFind "[A-Za-z]*$" $text))) 1048576 | int -}}
{{- end -}}

{{/*
Longest way from SIGTERM to the end of a pod, in seconds: not ready, drain, then what
daypass_core/server.py takes at most to cut (3), unwind (5) and close (8), and 9 to spare.
*/}}
{{- define "daypass.grace" -}}
{{- add .readySeconds .drainSeconds 25 -}}
{{- end -}}
