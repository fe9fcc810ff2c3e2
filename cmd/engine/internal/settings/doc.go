// Package settings is what can be set of a node. One table (settings.go, cluster.go) is the only place that gives the
// fields of Options names for users: flags, PENSTOCK_* variables, keys of the TOML file, defaults, help texts, penstock
// config and GET /config/<name> all come from it. Config reads the sources. serve and dev-cluster run nodes with it. It
// opens nothing but the files that settings name.
package settings
