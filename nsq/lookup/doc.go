// Package lookup is what nsqlookupd is to NSQ, as a part of every node. It has three sides:
//
//   - Answers. nsqlookupd's HTTP API says which nodes produce a topic (http.go, youzan.go). A cluster answers from what
//     its nodes agreed on, a lone node from its engine (directory.go). No node of ours has to register for that.
//   - Registrations. Stock nsqds register at this node as they would at nsqlookupd's TCP port: tcp.go has the
//     connections, session.go the commands of protocol V1, registry.go what was registered. Every answer includes it.
//   - The way out. This node registers at stock nsqlookupds what it leads, for consumers that know only these: led.go
//     compares what is led with what was told, registrar.go keeps the list of nsqlookupds, nsqlookupd.go talks to one.
//
// A topic that is created here begins with the channels that any of these know (topics.go), as nsqd does it.
//
// Package nsq owns the one Service of a node: it starts and stops it together with the listeners of clients, and asks
// it for the topics that clients name. This package knows nothing of nsqd's protocol.
package lookup
