// Package traffic has the commands that send and take messages: pub, sub, read and bench. They speak the native
// protocol; bench also speaks NSQ's. main imports it, and data, whose aside prints and publishes messages in the same
// way.
package traffic
