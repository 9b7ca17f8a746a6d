"""The controller: records which replicas are in sync, and elects a master when the present one is gone."""
