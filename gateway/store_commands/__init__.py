"""The commands `rmq-gateway store …`; what they show and do is in `storage/tools`."""
