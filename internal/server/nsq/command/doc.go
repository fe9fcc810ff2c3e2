// Package command parses the commands of the V2 protocol, those of youzan's clients too, and says what is wrong with
// them in nsqd's words. It has no I/O and no clock: package nsq passes it the bytes of a connection, and executes what
// it returns. It imports publish for the bodies of MPUB, and node for the names of topics.
package command
