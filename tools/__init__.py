"""Programs that prove and measure the servers: fuzzer, benchmarks, power cuts. They are not part of the wheel."""
