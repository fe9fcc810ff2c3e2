// Package operate has the commands with which people look after topics, channels and nodes every day: topic, channel,
// producer, trace, top, audit, reload and debug. They ask a running node. main imports it, and definitions, which
// changes topics as topic set does.
package operate
