"""What people are shown of topics and of the cluster, and told to do."""
