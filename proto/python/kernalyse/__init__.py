"""Client library of kernalyse: the generated contract `kernalyse.v1` and a small client."""
