{{/* Settings and files of the proxy. */}}

{{- define "daypass.proxyEnv" -}}
{{- $values := .Values.proxy -}}
{{- $providers := .Values.providers -}}
- name: DAYPASS_ISSUER
  value: {{ include "daypass.issuer" . | quote }}
- name: DAYPASS_AUDIENCE
  value: {{ .Values.audience | quote }}
- name: DAYPASS_LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- include "daypass.databaseEnv" (dict "root" . "login" "proxy") }}
- name: DAYPASS_BROKER_URL
  value: {{ include "daypass.brokerUrl" . | quote }}
- name: DAYPASS_PROXY_LISTEN
  value: {{ printf "%s:%d" .Values.listenHost (int $values.port) | quote }}
- name: DAYPASS_PROXY_METRICS_LISTEN
  value: {{ printf "%s:%d" .Values.listenHost (int $values.metricsPort) | quote }}
{{- if .Values.tls.enabled }}
- name: DAYPASS_PROXY_TLS_CERT
  value: /run/secrets/daypass/tls/tls.crt
- name: DAYPASS_PROXY_TLS_KEY
  value: /run/secrets/daypass/tls/tls.key
{{- end }}
- name: DAYPASS_PROXY_WORKERS
  value: {{ $values.workers | quote }}
- name: DAYPASS_READY_SECONDS
  value: {{ $values.readySeconds | quote }}
- name: DAYPASS_DRAIN_SECONDS
  value: {{ $values.drainSeconds | quote }}
{{- include "daypass.var" (dict "name" "DAYPASS_TRUSTED_PROXIES" "value" (include "daypass.networks" $values.trustedProxies)) }}
{{- include "daypass.var" (dict "name" "DAYPASS_ANTHROPIC_KEYS" "value" (include "daypass.keys" $providers.anthropic)) }}
- name: DAYPASS_ANTHROPIC_URL
  value: {{ $providers.anthropicUrl | quote }}
{{- include "daypass.var" (dict "name" "DAYPASS_OPENAI_KEYS" "value" (include "daypass.keys" $providers.openai)) }}
- name: DAYPASS_OPENAI_URL
  value: {{ $providers.openaiUrl | quote }}
{{- if $providers.sharedKeys }}
- name: DAYPASS_SHARED_KEYS
  value: "1"
{{- end }}
{{- if $providers.upstreamsConfigMap }}
- name: DAYPASS_UPSTREAMS
  value: /etc/daypass/upstreams/upstreams.json
{{- end }}
{{- if $providers.pricesConfigMap }}
- name: DAYPASS_PRICES
  value: /etc/daypass/prices/prices.json
{{- end }}
{{- if $providers.caSecret.name }}
- name: DAYPASS_UPSTREAM_CA_FILE
  value: /run/secrets/daypass/upstream-ca/ca.crt
{{- end }}
{{- if $providers.private }}
- name: DAYPASS_UPSTREAM_PRIVATE
  value: "1"
{{- end }}
{{- with $providers.egressProxySecret }}{{ if .name }}
- name: DAYPASS_EGRESS_PROXY
  valueFrom:
    secretKeyRef: {name: {{ .name }}, key: {{ .key }}}
{{- end }}{{ end }}
{{- include "daypass.vaultEnv" (dict "root" . "component" "proxy") }}
{{- include "daypass.furtherEnv" $values.settings }}
{{- end -}}

{{- define "daypass.proxyMounts" -}}
{{- $providers := .root.Values.providers -}}
- {name: tmp, mountPath: /tmp}
{{- include "daypass.databaseMounts" . }}
{{- include "daypass.vaultMounts" . }}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /run/secrets/daypass/tls, readOnly: true}
{{- end }}
{{- if $providers.existingSecret }}
- {name: provider-keys, mountPath: /run/secrets/daypass/provider-keys, readOnly: true}
{{- end }}
{{- if $providers.identity.enabled }}
- {name: identity, mountPath: /run/secrets/daypass/identity, readOnly: true}
{{- end }}
{{- if $providers.caSecret.name }}
- {name: upstream-ca, mountPath: /run/secrets/daypass/upstream-ca, readOnly: true}
{{- end }}
{{- if $providers.upstreamsConfigMap }}
- {name: upstreams, mountPath: /etc/daypass/upstreams, readOnly: true}
{{- end }}
{{- if $providers.pricesConfigMap }}
- {name: prices, mountPath: /etc/daypass/prices, readOnly: true}
{{- end }}
{{- end -}}

{{- define "daypass.proxyVolumes" -}}
{{- $providers := .root.Values.providers -}}
- {name: tmp, emptyDir: {sizeLimit: 64Mi}}
{{- include "daypass.databaseVolumes" . }}
{{- include "daypass.vaultVolumes" . }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "daypass.tlsSecret" . }}
    defaultMode: 0440
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{- end }}
{{- with $providers.existingSecret }}
- name: provider-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if $providers.identity.enabled }}
{{ include "daypass.projectedToken" (dict "volume" "identity" "audience" $providers.identity.audience) }}
{{- end }}
{{- with $providers.caSecret }}{{ if .name }}
{{ include "daypass.secretFile" (dict "volume" "upstream-ca" "secret" .name "key" .key "path" "ca.crt") }}
{{- end }}{{ end }}
{{- with $providers.upstreamsConfigMap }}
- name: upstreams
  configMap: {name: {{ . }}, items: [{key: upstreams.json, path: upstreams.json}]}
{{- end }}
{{- with $providers.pricesConfigMap }}
- name: prices
  configMap: {name: {{ . }}, items: [{key: prices.json, path: prices.json}]}
{{- end }}
{{- end -}}
