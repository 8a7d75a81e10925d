"""Networks on one machine whose links are cut and healed: proxies for everyone, namespaces for root on Linux."""
