// Package lookup does for every node what nsqlookupd does for NSQ. It has three parts:
//
//   - Answers. It serves nsqlookupd's HTTP API, which says which nodes produce a topic (http.go, youzan.go). A node of
//     a cluster answers from the metadata that the nodes agreed on, a lone node from its engine (directory.go). The
//     cluster's own nodes do not have to register anywhere for that.
//   - Registrations. Stock nsqds register at this node as they would at nsqlookupd's TCP port: tcp.go serves the
//     connections, session.go the commands of protocol V1, and registry.go holds the registrations. Every answer
//     includes them.
//   - Registering elsewhere. For consumers that know only stock nsqlookupds, this node registers there the topics that
//     it leads: led.go compares these topics with the ones already registered, registrar.go keeps the list of
//     nsqlookupds, and nsqlookupd.go talks to one of them.
//
// As in nsqd, a topic that is created here starts with the channels that any of these sources know (topics.go).
//
// Package server owns the one Service of a node: it starts and stops it together with the listeners for clients. Those
// who serve clients ask it for the topics that these name. This package knows nothing of nsqd's own protocol.
package lookup
