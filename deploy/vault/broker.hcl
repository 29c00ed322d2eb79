# What a broker needs of OpenBao or Vault with DAYPASS_SIGNING=transit: its three signing keys.
#
# For DAYPASS_TRANSIT_MOUNT=transit and DAYPASS_TRANSIT_KEY=daypass; with other names change them
# here. Every path is written out: an ending such as daypass-* would match daypass-access/config too,
# by which a key can be made exportable.
path "transit/sign/daypass-access" {
  capabilities = ["update"]
}
path "transit/sign/daypass-launch" {
  capabilities = ["update"]
}
path "transit/sign/daypass-renewal" {
  capabilities = ["update"]
}

# Public halves and versions; "create" and "update" make the keys at the first start, of this one
# type and never exportable. Take these two away afterwards.
path "transit/keys/daypass-access" {
  capabilities = ["read", "create", "update"]
  allowed_parameters = {
    "type"       = ["ecdsa-p256"]
    "exportable" = [false]
  }
}
path "transit/keys/daypass-launch" {
  capabilities = ["read", "create", "update"]
  allowed_parameters = {
    "type"       = ["ecdsa-p256"]
    "exportable" = [false]
  }
}
path "transit/keys/daypass-renewal" {
  capabilities = ["read", "create", "update"]
  allowed_parameters = {
    "type"       = ["ecdsa-p256"]
    "exportable" = [false]
  }
}

# A new version of each, when daypass rotates its signing keys. Without these an operator rotates.
path "transit/keys/daypass-access/rotate" {
  capabilities = ["update"]
}
path "transit/keys/daypass-launch/rotate" {
  capabilities = ["update"]
}
path "transit/keys/daypass-renewal/rotate" {
  capabilities = ["update"]
}

# How long its own token lives, where it is given in a file; and to tell after a 403 a token that has
# ended from a path that is forbidden.
path "auth/token/lookup-self" {
  capabilities = ["read"]
}
