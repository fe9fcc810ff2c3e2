// Package values has the types of values that settings and flags have, such as sizes, durations, addresses and choices:
// each parses and prints its notation. The table of settings and the flags of commands use it. It imports nothing of
// the commands.
package values
