# One node, in a network that only broker and proxy share; put TLS before it where that is not enough.
ui = false
storage "raft" {
  path    = "/openbao/file"
  node_id = "one"
}
listener "tcp" {
  address     = "0.0.0.0:8200"
  tls_disable = true
}
api_addr     = "http://openbao:8200"
cluster_addr = "http://openbao:8201"
