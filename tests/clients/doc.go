// Package clients runs clients that others wrote against a node and against a cluster of three: the utilities and
// nsqadmin of nsqio/nsq 1.3.0, built by the module in nsqio, and nsqjs from npm, installed in nsqjs. go-nsq is used
// throughout the tests of package server. The programs that docs/clients shows, with go-nsq, package client, pynsq from
// PyPI and nsqjs, are run without and with TLS and tokens.
//
// The tests need npm, pip and module downloads and carry the build tag `clients`: make clients runs them.
package clients
