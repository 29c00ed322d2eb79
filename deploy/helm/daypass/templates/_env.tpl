{{/* Settings of the containers. Secrets come in as files, or by secretKeyRef where a file is no way. */}}

{{/* A value as text. Numbers of a values file are floats, of which the usual text is 6.7108864e+07. */}}
{{- define "daypass.plain" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{/* One variable, left out when empty. */}}
{{- define "daypass.var" -}}
{{- if .value }}
- name: {{ .name }}
  value: {{ .value | quote }}
{{- end }}
{{- end -}}

{{/* The database as one of its logins: owner, broker, proxy. The same for all that have that login. */}}
{{- define "daypass.databaseEnv" -}}
{{- $database := .root.Values.database -}}
{{- $login := index $database .login -}}
{{- if eq $database.form "url" }}
- name: DAYPASS_DATABASE_URL_FILE
  value: /run/secrets/daypass/database/url
{{- else }}
- name: DAYPASS_DATABASE_URL
  value: {{ printf "postgresql://%s:%d/%s%s" $database.host (int $database.port) $database.name (ternary (printf "?%s" $database.parameters) "" (ne $database.parameters "")) | quote }}
- name: PGUSER
  valueFrom:
    secretKeyRef: {name: {{ $login.existingSecret }}, key: {{ $login.userKey }}}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ $login.existingSecret }}, key: {{ $login.passwordKey }}}
{{- end }}
{{- end -}}

{{- define "daypass.databaseMounts" -}}
{{- if eq .root.Values.database.form "url" }}
- {name: database, mountPath: /run/secrets/daypass/database, readOnly: true}
{{- end }}
{{- if .root.Values.database.caSecret.name }}
- {name: database-ca, mountPath: /run/secrets/daypass/database-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "daypass.databaseVolumes" -}}
{{- $database := .root.Values.database -}}
{{- $login := index $database .login -}}
{{- if eq $database.form "url" }}
- name: database
  secret:
    secretName: {{ $login.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ $login.urlKey }}, path: url}]
{{- end }}
{{- with $database.caSecret }}{{ if .name }}
{{ include "daypass.secretFile" (dict "volume" "database-ca" "secret" .name "key" .key "path" "ca.crt") }}
{{- end }}{{ end }}
{{- end -}}

{{/* One key of a Secret as a volume with one file. */}}
{{- define "daypass.secretFile" -}}
- name: {{ .volume }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: {{ .path }}}]
{{- end -}}

{{/* A token of the pod's service account for one audience; the kubelet renews it. */}}
{{- define "daypass.projectedToken" -}}
- name: {{ .volume }}
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken: {audience: {{ .audience | quote }}, expirationSeconds: 3600, path: token}
{{- end -}}

{{/* Where signing keys lie: on a volume, in Vault, or in both while they move. */}}
{{- define "daypass.keysOnVolume" -}}
{{- if or (eq .Values.broker.signing "file") .Values.broker.keysMove }}true{{ end -}}
{{- end -}}

{{- define "daypass.keysInVault" -}}
{{- if or (eq .Values.broker.signing "transit") .Values.broker.keysMove }}true{{ end -}}
{{- end -}}

{{/* Whether a component talks to Vault: the broker to sign, the proxy for keys. */}}
{{- define "daypass.usesVault" -}}
{{- if and .root.Values.vault.address (or (eq .component "proxy") (include "daypass.keysInVault" .root)) }}true{{ end -}}
{{- end -}}

{{- define "daypass.vaultEnv" -}}
{{- if include "daypass.usesVault" . }}
{{- $vault := .root.Values.vault -}}
{{- $login := index $vault .component }}
- name: DAYPASS_VAULT_ADDR
  value: {{ $vault.address | quote }}
- name: DAYPASS_VAULT_AUTH
  value: {{ $vault.auth }}
{{- if has $vault.auth (list "kubernetes" "jwt") }}
- name: DAYPASS_VAULT_ROLE
  value: {{ $login.role | quote }}
- name: DAYPASS_VAULT_JWT_FILE
  value: /run/secrets/daypass/vault-identity/token
{{- else if eq $vault.auth "approle" }}
- name: DAYPASS_VAULT_ROLE_ID
  valueFrom:
    secretKeyRef: {name: {{ $login.existingSecret }}, key: role-id}
- name: DAYPASS_VAULT_SECRET_ID_FILE
  value: /run/secrets/daypass/vault-login/secret-id
{{- else }}
- name: DAYPASS_VAULT_TOKEN_FILE
  value: /run/secrets/daypass/vault-login/token
{{- end }}
{{- include "daypass.var" (dict "name" "DAYPASS_VAULT_MOUNT" "value" $vault.mount) }}
{{- include "daypass.var" (dict "name" "DAYPASS_VAULT_NAMESPACE" "value" $vault.namespace) }}
{{- if $vault.caSecret.name }}
- name: DAYPASS_VAULT_CA_FILE
  value: /run/secrets/daypass/vault-ca/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{- define "daypass.vaultMounts" -}}
{{- if include "daypass.usesVault" . }}
{{- if has .root.Values.vault.auth (list "kubernetes" "jwt") }}
- {name: vault-identity, mountPath: /run/secrets/daypass/vault-identity, readOnly: true}
{{- else }}
- {name: vault-login, mountPath: /run/secrets/daypass/vault-login, readOnly: true}
{{- end }}
{{- if .root.Values.vault.caSecret.name }}
- {name: vault-ca, mountPath: /run/secrets/daypass/vault-ca, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "daypass.vaultVolumes" -}}
{{- if include "daypass.usesVault" . }}
{{- $vault := .root.Values.vault -}}
{{- $login := index $vault .component -}}
{{- if has $vault.auth (list "kubernetes" "jwt") }}
{{ include "daypass.projectedToken" (dict "volume" "vault-identity" "audience" $vault.audience) }}
{{- else }}
{{- $key := ternary "secret-id" "token" (eq $vault.auth "approle") }}
{{ include "daypass.secretFile" (dict "volume" "vault-login" "secret" $login.existingSecret "key" $key "path" $key) }}
{{- end }}
{{- with $vault.caSecret }}{{ if .name }}
{{ include "daypass.secretFile" (dict "volume" "vault-ca" "secret" .name "key" .key "path" "ca.crt") }}
{{- end }}{{ end }}
{{- end }}
{{- end -}}

{{/* Settings of values.yaml that are handed on by name. */}}
{{- define "daypass.furtherEnv" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ include "daypass.plain" $value | quote }}
{{- end }}
{{- end -}}

{{- define "daypass.networks" -}}
{{- join "," . -}}
{{- end -}}

{{/* `tenant=reference,tenant=reference` */}}
{{- define "daypass.keys" -}}
{{- join "," . -}}
{{- end -}}
