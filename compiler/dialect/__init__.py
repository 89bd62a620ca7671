"""The kv dialect and the policy that its ops carry."""
