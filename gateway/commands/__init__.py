"""The subcommands of `sluice` that the gateway contributes; each module has one click `command`."""
