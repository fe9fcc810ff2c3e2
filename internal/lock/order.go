// Package lock has the mutexes of the engine, of what is below it, of cluster and of nsq. Each belongs to a class, and
// the classes have an order: a goroutine that holds a lock takes only locks of later classes, and no second one of the
// same class. Then no two goroutines can wait for each other. docs/concurrency.md says what each lock guards.
//
// In the product a Mutex is a sync.Mutex and nothing more. With the build tag lockcheck (make lock-order) each Lock is
// compared with what the goroutine holds, and panics where the order is broken: also when nobody waits just then.
package lock

// The classes, named by the type that has the lock, and by its field if there are several. Where another package would
// make the name unclear, the lock stands behind it.
type (
	TopicChanging      struct{}
	ChannelConfiguring struct{}
	EngineCatalog      struct{}
	ReplicaDiscard     struct{}
	ShortenedFile      struct{} // dir.Shortened.file
	NodeFile           struct{} // dir.NodeFile.mu

	Channel        struct{}
	Subscription   struct{}
	RemoteConsumer struct{}

	CommitLog   struct{}
	Replica     struct{}
	Topic       struct{}
	Engine      struct{}
	SegmentIO   struct{}
	Forwarder   struct{}
	Partition   struct{} // inbox.Inbox.mu
	Flusher     struct{} // flush.Flusher.mu; the flusher of nsq has NSQFlusher
	LogPreparer struct{} // of clog

	CommitterReady struct{}
	ChannelPosts   struct{}
	Confirmer      struct{} // channel.Node.mu
	Remotes        struct{} // remote.Consumers.mu
	Operations     struct{}
	Refusals       struct{} // of engine/forward
	AbsentCopies   struct{}
	Shortened      struct{}
	ConfirmedBound struct{} // retain.Bound.mu
	Ages           struct{}
	Clock          struct{}
	ClusterChange  struct{}
	ClusterExited  struct{}
	LogLimiter     struct{}
	AsyncFree      struct{} // inbox.AsyncPuts.mu
	DiskHealth     struct{} // diskwatch.Watch.mu
	LogIdleMark    struct{} // of clog

	PeerNet  struct{}
	PeerLink struct{}
	NodeConn struct{} // netproto.Conn.mu

	ClusterTasks struct{}
	ClusterStore struct{}

	NSQServer  struct{}
	NSQFlight  struct{}
	NSQAnswers struct{}
	NSQOutput  struct{}
	NSQWire    struct{}
	NSQFlusher struct{}
	NSQTargets struct{}
	NSQSketch  struct{}

	SegmentLog     struct{}
	SegmentMapping struct{}
)

// order is the order in which classes are taken. Long operations come first: their holders wait for the disk or for
// other nodes. The last are held for some instructions, and most of them are taken with nothing behind them.
var order = [...]any{
	TopicChanging{},
	ChannelConfiguring{},
	EngineCatalog{},
	ReplicaDiscard{},
	ShortenedFile{},
	NodeFile{},
	Channel{},
	Subscription{},
	RemoteConsumer{},
	CommitLog{},
	Replica{},
	Topic{},
	Engine{},
	SegmentIO{},
	Forwarder{},
	Partition{},
	Flusher{},
	LogPreparer{},
	CommitterReady{},
	ChannelPosts{},
	Confirmer{},
	Remotes{},
	Operations{},
	Refusals{},
	AbsentCopies{},
	Shortened{},
	ConfirmedBound{},
	Ages{},
	Clock{},
	ClusterChange{},
	ClusterExited{},
	LogLimiter{},
	AsyncFree{},
	DiskHealth{},
	LogIdleMark{},
	PeerNet{},
	PeerLink{},
	NodeConn{},
	ClusterTasks{},
	ClusterStore{},
	NSQServer{},
	NSQFlight{},
	NSQAnswers{},
	NSQOutput{},
	NSQWire{},
	NSQFlusher{},
	NSQTargets{},
	NSQSketch{},
	SegmentLog{},
	SegmentMapping{},
}
