{{/* What the schema cannot say: values that do not go together, each with a sentence that helps. */}}

{{- define "daypass.checks" -}}
{{- include "daypass.checkName" . -}}
{{- include "daypass.checkBroker" . -}}
{{- include "daypass.checkVault" . -}}
{{- include "daypass.checkProviders" . -}}
{{- include "daypass.checkFront" . -}}
{{- include "daypass.checkDatabase" . -}}
{{- end -}}

{{- define "daypass.checkName" -}}
{{- if not (regexMatch "^[a-z]" (include "daypass.fullname" .)) -}}
{{- fail (printf "the name of a Service begins with a letter, not as in %s: set fullnameOverride" (include "daypass.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{- define "daypass.checkBroker" -}}
{{- $broker := .Values.broker -}}
{{- if and (eq $broker.signing "transit") (not .Values.vault.address) -}}
{{- fail "broker.signing is transit, which needs vault.address; without Vault set broker.signing=file and broker.replicas=1" -}}
{{- end -}}
{{- if and $broker.keysMove (not .Values.vault.address) -}}
{{- fail "broker.keysMove is between a volume and Vault, which needs vault.address" -}}
{{- end -}}
{{- if and (include "daypass.keysOnVolume" .) (gt (int $broker.replicas) 1) (ne $broker.keys.accessMode "ReadWriteMany") -}}
{{- fail "several brokers with broker.signing=file or broker.keysMove share one directory: give broker.keys.accessMode=ReadWriteMany, or use transit, or broker.replicas=1" -}}
{{- end -}}
{{- if and $broker.webhooks.existingSecret (not $broker.webhooks.vendors) -}}
{{- fail "broker.webhooks.existingSecret needs broker.webhooks.vendors: which of its keys are in use" -}}
{{- end -}}
{{- end -}}

{{- define "daypass.checkVault" -}}
{{- $root := . -}}
{{- if has .Values.vault.auth (list "approle" "token") -}}
{{- range $component := list "broker" "proxy" -}}
{{- if and (include "daypass.usesVault" (dict "root" $root "component" $component)) (not (index $root.Values.vault $component).existingSecret) -}}
{{- fail (printf "vault.auth=%s needs vault.%s.existingSecret" $root.Values.vault.auth $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "daypass.checkProviders" -}}
{{- $providers := .Values.providers -}}
{{- $references := printf "%s,%s" (include "daypass.keys" $providers.anthropic) (include "daypass.keys" $providers.openai) -}}
{{- if and (not $providers.anthropic) (not $providers.openai) (not $providers.upstreamsConfigMap) -}}
{{- fail "name a provider: providers.anthropic, providers.openai or providers.upstreamsConfigMap" -}}
{{- end -}}
{{- if and (contains "vault://" $references) (not .Values.vault.address) -}}
{{- fail "a provider key is at vault://, which needs vault.address" -}}
{{- end -}}
{{- if and (contains "file:///run/secrets/daypass/provider-keys/" $references) (not $providers.existingSecret) -}}
{{- fail "a provider key is in /run/secrets/daypass/provider-keys, which needs providers.existingSecret" -}}
{{- end -}}
{{- if and (contains "federation:///run/secrets/daypass/identity/" $references) (not $providers.identity.enabled) -}}
{{- fail "a provider key is federation:///run/secrets/daypass/identity/…, which needs providers.identity.enabled" -}}
{{- end -}}
{{- end -}}

{{- define "daypass.checkFront" -}}
{{- $ingress := .Values.ingress -}}
{{- $scaling := .Values.proxy.autoscaling -}}
{{- if and $ingress.enabled (or (not $ingress.host) (not $ingress.tlsSecret)) -}}
{{- fail "ingress.enabled needs ingress.host and ingress.tlsSecret: official clients take https only" -}}
{{- end -}}
{{- if and $ingress.tokenToBroker .Values.broker.trustedProxies -}}
{{- fail "ingress.tokenToBroker with broker.trustedProxies: clients could say themselves where they are, since the Ingress hands their headers on" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and .Values.tls.handOutCa (not .Values.tls.enabled) -}}
{{- fail "tls.handOutCa needs tls.enabled" -}}
{{- end -}}
{{- if $scaling.enabled -}}
{{- if and (not $scaling.cpuPercent) (not $scaling.openCalls) -}}
{{- fail "proxy.autoscaling needs cpuPercent or openCalls" -}}
{{- end -}}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) -}}
{{- fail "proxy.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "daypass.checkDatabase" -}}
{{- if and (eq .Values.database.form "login") (not .Values.database.host) -}}
{{- fail "database.form=login needs database.host" -}}
{{- end -}}
{{- if and .Values.prune.enabled (not .Values.prune.usageMonths) (not .Values.prune.auditMonths) -}}
{{- fail "prune.enabled needs prune.usageMonths or prune.auditMonths: say what may go" -}}
{{- end -}}
{{- end -}}
