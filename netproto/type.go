package netproto

import "strconv"

// Type says what a frame is. Zero is invalid, so that unwritten bytes show. Numbers are for ever;
// what is in a payload is defined by the package that sends it.
type Type uint8

// Frame types. 1–15 belong to the connection, 16–31 to replication, 32–47 to forwarding between nodes; 64 and
// more are kept for clients.
const (
	TypeHello    Type = 1 // first frame of the side that connected; see Hello
	TypeHelloAck Type = 2 // its answer; see Hello
	TypePing     Type = 3 // asks for a sign of life; the connection answers itself
	TypePong     Type = 4 // carries the request id of the newest Ping
	TypeGoodbye  Type = 5 // last frame of a side; status and text say why
	TypeError    Type = 6 // answers a request that has no answer of its own; status and text

	TypePutMessagesOnReplica Type = 16 // leader to follower: placement, then sealed batches
	TypePutAck               Type = 17 // follower to leader: what is durable; cumulative
	// leader to follower: how much was sent, and Committed, when there is nothing else to send
	TypeHeartbeat  Type = 18
	TypeProbe      Type = 19 // leader to follower: what does your log hold
	TypeReport     Type = 20 // its answer: the log's end and where its epochs began
	TypeFetchRange Type = 21 // a range of a log, for repair
	TypeFetchReply Type = 22 // placement, then sealed batches
	TypeMatch      Type = 23 // leader to follower: our logs are equal below a position; cut the rest
	TypeReset      Type = 24 // leader to follower: nothing in common is left; begin anew
	TypeGap        Type = 25 // follower to leader: something before what was sent is missing
	TypeReject     Type = 26 // follower to leader: nothing was done, and why
	TypeResync     Type = 27 // follower to leader: probe me

	TypeForwardPut Type = 32 // a node to the leader: a client's put
	TypeForwardAck Type = 33
	// TypeForwardOp asks a node that leads partitions of a topic to do something with its channels; TypeForwardOpAck
	// answers.
	TypeForwardOp    Type = 34
	TypeForwardOpAck Type = 35
	// A client subscribes at a node that leads no partition of the topic: that node subscribes at the leaders. The request
	// is the subscription's number, chosen by the node that has the client.
	TypeSubscribe   Type = 36 // to a leader
	TypeSubscribed  Type = 37 // its answer
	TypeConsume     Type = 38 // to a leader: what the client said of its credit and its messages
	TypeConsumed    Type = 39 // from the leader: how many are in flight, and what it refused
	TypeDeliver     Type = 40 // from the leader: messages
	TypeUnsubscribe Type = 41 // to a leader: the client is gone
	TypeUnserved    Type = 42 // from the leader: the subscription has ended, and why
	// to a leader: the time at the node that has the clients. From feature level 2, as the three that follow
	TypeStamp Type = 43
	// from the leader: messages of an ordered channel, and until when they may be handed to a client
	TypeDeliverHeld Type = 44
	TypeFence       Type = 45 // from a leader that begins: hand over nothing of the leaders before
	TypeFenced      Type = 46 // its answer: nothing of theirs is left
)

var typeNames = map[Type]string{
	TypeHello: "Hello", TypeHelloAck: "HelloAck", TypePing: "Ping", TypePong: "Pong", TypeGoodbye: "Goodbye",
	TypeError:                "Error",
	TypePutMessagesOnReplica: "PutMessagesOnReplica", TypePutAck: "PutAck", TypeHeartbeat: "Heartbeat",
	TypeProbe: "Probe", TypeReport: "Report", TypeFetchRange: "FetchRange", TypeFetchReply: "FetchReply",
	TypeMatch: "Match", TypeReset: "Reset", TypeGap: "Gap", TypeReject: "Reject", TypeResync: "Resync",
	TypeForwardPut: "ForwardPut", TypeForwardAck: "ForwardAck",
	TypeForwardOp: "ForwardOp", TypeForwardOpAck: "ForwardOpAck",
	TypeSubscribe: "Subscribe", TypeSubscribed: "Subscribed", TypeConsume: "Consume", TypeConsumed: "Consumed",
	TypeDeliver: "Deliver", TypeUnsubscribe: "Unsubscribe", TypeUnserved: "Unserved",
	TypeStamp: "Stamp", TypeDeliverHeld: "DeliverHeld", TypeFence: "Fence", TypeFenced: "Fenced",
}

// String is the type's name in FORMAT.md, or its number.
func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return "type " + strconv.Itoa(int(t))
}

// ofConnection reports whether users must not send the type: the connection does.
func (t Type) ofConnection() bool { return t >= TypeHello && t <= TypeGoodbye }

// Status is the outcome that an answer carries; in a request it is StatusOK. Each says what the one who asked
// must do. Numbers are for ever. A status that a receiver does not know means what StatusUnknown means.
type Status uint16

// Statuses.
const (
	// StatusOK: done, with the durability that the request's type promises. Go on.
	StatusOK Status = 0
	// StatusRejected: nothing was applied and nothing will be. Repeating the same request gives the same answer: change
	// it.
	StatusRejected Status = 1
	// StatusUnknown: it may have been applied, or may surface later. Repeat it with the same producer id and
	// sequence, or tell the user that the outcome is unknown; never report failure.
	StatusUnknown Status = 2
	// StatusNotLeader: nothing was applied; this node does not lead the partition. Look up the leader, ask it.
	StatusNotLeader Status = 3
	// StatusOldEpoch: nothing was applied; the receiver knows a newer epoch than the frame's. The sender no longer
	// leads: it must stop acknowledging and step down.
	StatusOldEpoch Status = 4
	// StatusNewEpoch: nothing was applied; the frame is of an epoch that the receiver has not heard of. Send the
	// partition's state (or wait until it was read), then repeat.
	StatusNewEpoch Status = 5
	// StatusGap: nothing was applied; batches before the first of the frame are missing. Go back to the position that
	// the answer names and send from there.
	StatusGap Status = 6
	// StatusDiverged: nothing was applied; the receiver's log differs before the frame's position. Exchange epoch
	// tables, let it cut its log, then send from the last common batch.
	StatusDiverged Status = 7
	// StatusFull: nothing was applied for want of room (disk, memory or window). Wait and repeat, slower.
	StatusFull Status = 8
	// StatusCorrupt: the frame, or the stored bytes that it asked for, failed their checksum. Nothing was applied. Of a
	// frame: send it again from the source. Of stored bytes: ask another replica.
	StatusCorrupt Status = 9
	// StatusClosed: nothing was applied; the receiver, or its partition, is shutting down. Connect to another node, or
	// again later.
	StatusClosed Status = 10
	// StatusVersionMismatch: nothing was applied; the two sides have no protocol version or required feature in
	// common. Upgrade the older one; repeating does not help.
	StatusVersionMismatch Status = 11
	// StatusTooBig: nothing was applied; a frame or what it asks for is above a limit. Split it.
	StatusTooBig Status = 12
	// StatusInternal: the receiver met an error of its own (a failed disk). Treat the outcome as unknown, and the
	// replica as out of service until it reports otherwise.
	StatusInternal Status = 13
	// StatusWrongCluster: nothing was applied; the nodes belong to different clusters. Correct the address or the
	// configuration.
	StatusWrongCluster Status = 14
	// StatusOverloaded: nothing was read; the receiver has as many connections as it allows. Wait and repeat, or ask
	// another node.
	StatusOverloaded Status = 15

	statusCount = 16
)

var statusNames = [statusCount]string{
	"OK", "Rejected", "Unknown", "NotLeader", "OldEpoch", "NewEpoch", "Gap", "Diverged", "Full", "Corrupt", "Closed",
	"VersionMismatch", "TooBig", "Internal", "WrongCluster", "Overloaded",
}

// String is the status's name in FORMAT.md, or its number.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "status " + strconv.Itoa(int(s))
}
