"""An open segment and its replicas: the leader's side and the followers'."""
