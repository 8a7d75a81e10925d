"""The decisions of the controller: which node hosts which replica, and which replicas count."""
