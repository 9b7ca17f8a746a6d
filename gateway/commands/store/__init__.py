"""The commands `rmq-gateway store …`; the work itself is done in `storage/tools`."""
