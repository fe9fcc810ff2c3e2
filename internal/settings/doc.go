// Package settings describes what can be configured as rows of a table: one row for one setting, with its number in
// logs, its name in JSON and TOML, its flag, its unit and bounds, the feature level that it needs, and the sentence
// that explains it. Everything that has to know a setting comes from its row: the encoding in a log, the flag of a
// command and what help says about it, the reference page, and what the simulator tries.
//
// Package machine has the table of a channel, package meta that of a topic. A new setting is a field of the struct, a
// row, and what the setting does.
//
// The package decides only: it does no I/O, and imports nothing of the product.
package settings
