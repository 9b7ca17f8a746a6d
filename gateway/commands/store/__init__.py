"""The commands `rmq-gateway store …`; the work behind them is in `storage/tools`."""
