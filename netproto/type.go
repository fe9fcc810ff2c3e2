package netproto

import "strconv"

// Type says what a frame is. Zero is invalid, so that unwritten bytes are recognized. Numbers never change their
// meaning. The package that sends a type defines the type's payload.
type Type uint8

// Frame types. 1–15 belong to the connection, 16–31 to replication, 32–47 to forwarding between nodes; 64 and more to
// clients (package internal/server/native/wire defines them).
const (
	TypeHello    Type = 1 // first frame of the side that connected; see Hello
	TypeHelloAck Type = 2 // answer to Hello; see Hello
	TypePing     Type = 3 // asks for a sign of life; the connection itself answers
	TypePong     Type = 4 // carries the request id of the newest Ping
	TypeGoodbye  Type = 5 // last frame of a side; status and text say why
	TypeError    Type = 6 // answers a request that has no answer type of its own; status and text
	// only in the handshake, between Hello and HelloAck, of sides that have a secret; see secret.go
	TypeChallenge Type = 7 // to the side that connected: a nonce
	TypeProof     Type = 8 // its answer: the proof that it has the secret

	TypePutMessagesOnReplica Type = 16 // leader to follower: placement, then sealed batches
	TypePutAck               Type = 17 // follower to leader: its durable mark; cumulative
	// leader to follower when there is nothing else to send: how much was sent, and Committed
	TypeHeartbeat  Type = 18
	TypeProbe      Type = 19 // leader to follower: asks what the follower's log holds
	TypeReport     Type = 20 // answer to Probe: the log's end and where its epochs began
	TypeFetchRange Type = 21 // asks for a range of a log, for repair
	TypeFetchReply Type = 22 // answer to FetchRange: placement, then sealed batches
	TypeMatch      Type = 23 // leader to follower: our logs are equal below a position; cut the rest
	TypeReset      Type = 24 // leader to follower: the logs have nothing in common; begin anew
	TypeGap        Type = 25 // follower to leader: batches before those just sent are missing
	TypeReject     Type = 26 // follower to leader: nothing was done, and why
	TypeResync     Type = 27 // follower to leader: probe me

	TypeForwardPut Type = 32 // from any node to the leader: a client's put
	TypeForwardAck Type = 33 // answer to ForwardPut
	// TypeForwardOp asks a node that leads partitions of a topic to do something with the topic's channels;
	// TypeForwardOpAck answers.
	TypeForwardOp    Type = 34
	TypeForwardOpAck Type = 35
	// For a client at a node that leads no partition of the topic, that node subscribes at the leaders. The request id
	// is the subscription's number, which the client's node chooses.
	TypeSubscribe   Type = 36 // to a leader
	TypeSubscribed  Type = 37 // the leader's answer to Subscribe
	TypeConsume     Type = 38 // to a leader: the client's credit, and what the client said about its messages
	TypeConsumed    Type = 39 // from the leader: how many messages are in flight, and what it refused
	TypeDeliver     Type = 40 // from the leader: messages
	TypeUnsubscribe Type = 41 // to a leader: the client is gone
	TypeUnserved    Type = 42 // from the leader: the subscription has ended, and why
	// to a leader: the time of the client's node. This type and the three that follow need feature level 2
	TypeStamp Type = 43
	// from the leader: messages of an ordered channel, and until when they may be handed to a client
	TypeDeliverHeld Type = 44
	TypeFence       Type = 45 // from a leader that begins: hand over nothing that earlier leaders delivered
	TypeFenced      Type = 46 // answer to Fence: nothing from earlier leaders is left
)

var typeNames = map[Type]string{
	TypeHello: "Hello", TypeHelloAck: "HelloAck", TypePing: "Ping", TypePong: "Pong", TypeGoodbye: "Goodbye",
	TypeError: "Error", TypeChallenge: "Challenge", TypeProof: "Proof",
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

// ofConnection reports whether the type belongs to the connection, so that users must not send it.
func (t Type) ofConnection() bool {
	return t >= TypeHello && t <= TypeGoodbye || t == TypeChallenge || t == TypeProof
}

// Status is the outcome that an answer carries; in a request it is StatusOK. Each status says what the requester must
// do. Numbers never change their meaning. A receiver treats a status that it does not know as StatusUnknown.
type Status uint16

// Statuses.
const (
	// StatusOK: done, with the durability that the request's type promises. Go on.
	StatusOK Status = 0
	// StatusRejected: nothing was applied, and nothing will be. The same request would get the same answer: change the
	// request.
	StatusRejected Status = 1
	// StatusUnknown: the request may have been applied, or may still be. Repeat it with the same producer id and
	// sequence, or tell the user that the outcome is unknown; never report failure.
	StatusUnknown Status = 2
	// StatusNotLeader: nothing was applied; this node does not lead the partition. Look up the leader and ask the
	// leader.
	StatusNotLeader Status = 3
	// StatusOldEpoch: nothing was applied; the receiver knows a newer epoch than the frame's. The sender is no longer
	// the leader: it must stop acknowledging and step down.
	StatusOldEpoch Status = 4
	// StatusNewEpoch: nothing was applied; the receiver has not heard of the frame's epoch yet. Send the partition's
	// state, or wait until the receiver has read it, then repeat.
	StatusNewEpoch Status = 5
	// StatusGap: nothing was applied; batches before the first of the frame are missing. Go back to the position that
	// the answer names and send from there.
	StatusGap Status = 6
	// StatusDiverged: nothing was applied; the receiver's log differs from the sender's before the frame's position.
	// Exchange epoch tables, let the receiver cut its log, then send from the last common batch.
	StatusDiverged Status = 7
	// StatusFull: nothing was applied for lack of room (disk, memory or window). Wait, then repeat, more slowly.
	StatusFull Status = 8
	// StatusCorrupt: the frame, or the stored bytes that it asked for, failed their checksum. Nothing was applied. For
	// a frame: send it again from the source. For stored bytes: ask another replica.
	StatusCorrupt Status = 9
	// StatusClosed: nothing was applied; the receiver, or its partition, is shutting down. Connect to another node, or
	// try again later.
	StatusClosed Status = 10
	// StatusVersionMismatch: nothing was applied; the two sides have no protocol version or required feature in
	// common. Upgrade the older one; repeating does not help.
	StatusVersionMismatch Status = 11
	// StatusTooBig: nothing was applied; the frame, or what it asks for, exceeds a limit. Split it.
	StatusTooBig Status = 12
	// StatusInternal: the receiver failed internally (for example its disk). Treat the outcome as unknown, and the
	// replica as out of service until it reports otherwise.
	StatusInternal Status = 13
	// StatusWrongCluster: nothing was applied; the nodes belong to different clusters. Correct the address or the
	// configuration.
	StatusWrongCluster Status = 14
	// StatusOverloaded: nothing was read; the receiver has as many connections as it allows. Wait and repeat, or ask
	// another node.
	StatusOverloaded Status = 15
	// StatusUnproven: nothing was applied; one side does not prove that it has the secret that the other demands. Give
	// both the same secret.
	StatusUnproven Status = 16

	statusCount = 17
)

var statusNames = [statusCount]string{
	"OK", "Rejected", "Unknown", "NotLeader", "OldEpoch", "NewEpoch", "Gap", "Diverged", "Full", "Corrupt", "Closed",
	"VersionMismatch", "TooBig", "Internal", "WrongCluster", "Overloaded", "Unproven",
}

// String is the status's name in FORMAT.md, or its number.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return "status " + strconv.Itoa(int(s))
}
