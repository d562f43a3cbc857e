{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Pods of this name run without rights, as user 10001 of the image. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: ["ALL"] }
{{- end }}

{{- define "sluice.size" -}}
{{- if not (hasKey .Values.sizes .Values.size) }}
{{- fail (printf "size: got %q, expected one of %s" .Values.size (keys .Values.sizes | sortAlpha | join ", ")) }}
{{- end }}
{{- get .Values.sizes .Values.size | toJson }}
{{- end }}

{{- /* A settings file is flat: `section.key = value`, whose value JSON and TOML write alike. */}}
{{- define "sluice.toml" -}}
{{- $root := .root }}
{{- $peers := list }}
{{- range $other := until (int $root.Values.nodes) }}
{{- $peers = append $peers (printf "%s-%d.%s-nodes:40840" $root.Release.Name $other $root.Release.Name) }}
{{- end }}
{{- $settings := dict
      "role" (ternary "active" "standby" (eq .node 0))
      "peers" $peers
      "ledger_keys" $root.Values.ledgerKeys
      "commit.min_standbys" $root.Values.minStandbys
      "grpc.advertised_address" (index $peers .node)
      "control.address" "0.0.0.0:40841"
      "control.tls_certificate" "/tls/tls.crt"
      "control.tls_key" "/tls/tls.key"
      "control.tls_client_ca" "/tls/ca.crt" }}
{{- range $name := keys $root.Values.settings | sortAlpha }}
{{- if or (hasKey $settings $name) (has $name (list "data_dir" "grpc.address" "tcp.address" "http.address")) }}
{{- fail (printf "settings: got %s, which is not for you to set: the chart does it, or has a value for it" $name) }}
{{- end }}
{{- end }}
{{- $settings = merge (deepCopy $root.Values.settings) (include "sluice.size" $root | fromJson).settings $settings }}
{{- range $name, $value := $settings }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
