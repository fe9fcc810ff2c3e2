// Package serve has the commands that run a node: serve, and nsqd, which takes the command line of nsqd 1.3.0. It
// judges the settings, divides the memory, opens the data directory and the listeners, joins the cluster with its part
// of etcd, watches the files of credentials, and tells systemd. Only main imports it.
package serve
