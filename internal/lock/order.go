// Package lock has the mutexes of the engine, of the packages below it, of cluster and of nsq. Each mutex belongs to a
// class, and the classes have an order: a goroutine that holds a lock takes only locks of later classes, and no second
// lock of the same class. So no two goroutines can wait for each other. docs/contribute/concurrency.md says what each
// lock guards.
//
// In the product a Mutex is a sync.Mutex and nothing more. In a build with -race (make race), each Lock is checked
// against the locks that the goroutine holds, and panics if the order is broken, even if no deadlock happens at that
// moment.
package lock

// The classes. Each is named after the type that has the lock, and after the field if that type has several locks. The
// comment names the lock where the class name alone would be unclear.
type (
	TopicChanging      struct{}
	ChannelConfiguring struct{}
	CatalogFiles       struct{} // catalog.Catalog.files
	ReplicaDiscard     struct{}
	ShortenedFile      struct{} // datadir.Shortened.file
	NodeFile           struct{} // datadir.NodeFile.mu

	Channel        struct{}
	Subscription   struct{}
	RemoteConsumer struct{}
	Messages       struct{} // of engine

	CommitLog   struct{}
	Replica     struct{}
	Topic       struct{}
	Catalog     struct{}
	SegmentIO   struct{}
	Forwarder   struct{}
	Partition   struct{} // inbox.Inbox.mu
	Flusher     struct{} // flush.Flusher.mu; netio.Flusher has AnswersQueue
	LogPreparer struct{} // of clog

	CommitterReady struct{}
	ChannelPosts   struct{}
	Confirmer      struct{} // channel.Shared.mu
	Leavers        struct{} // of channel
	Remotes        struct{} // remote.Consumers.mu
	Operations     struct{}
	Arrivals       struct{} // of internal/node/forward
	AbsentCopies   struct{}
	Shortened      struct{}
	Aside          struct{} // aside.Keeper.mu
	ConfirmedBound struct{} // retain.Bound.mu
	Ages           struct{}
	Clock          struct{}
	ClusterChange  struct{}
	ClusterExited  struct{}
	LogLimiter     struct{}
	AsyncFree      struct{} // inbox.AsyncPuts.mu
	DiskHealth     struct{} // diskwatch.Watch.mu
	LogIdleMark    struct{} // of clog

	PeerNet      struct{}
	PeerLink     struct{}
	AnswersOfLog struct{} // netio.Flusher.logMu
	NodeConn     struct{} // netproto.Conn.mu

	ClusterTasks struct{}
	ClusterStore struct{}
	ClusterISR   struct{}
	ClusterGiven struct{} // cluster.handOvers.mu

	NSQServer    struct{}
	NSQFlight    struct{}
	NSQAnswers   struct{}
	NSQOutput    struct{}
	NSQWire      struct{}
	NSQPoll      struct{} // nsq.publisherPoll.mu
	AnswersQueue struct{} // netio.Flusher.mu
	Backup       struct{} // engine.backupSlot
	NSQTargets   struct{}
	NSQSketch    struct{}

	SegmentLog      struct{}
	SegmentMapping  struct{}
	SegmentMappings struct{} // Mappings.mu, of the node
)

// order is the order in which classes are taken. Locks that are held during long operations come first: their holders
// wait for the disk or for other nodes. The last ones are held for a few instructions, and their holders mostly take no
// other lock.
var order = [...]any{
	TopicChanging{},
	ChannelConfiguring{},
	CatalogFiles{},
	ReplicaDiscard{},
	ShortenedFile{},
	NodeFile{},
	Channel{},
	Subscription{},
	RemoteConsumer{},
	Messages{},
	CommitLog{},
	Replica{},
	Topic{},
	Catalog{},
	SegmentIO{},
	Forwarder{},
	Partition{},
	Flusher{},
	LogPreparer{},
	CommitterReady{},
	ChannelPosts{},
	Confirmer{},
	Leavers{},
	Remotes{},
	Operations{},
	Arrivals{},
	AbsentCopies{},
	Shortened{},
	Aside{},
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
	AnswersOfLog{},
	NodeConn{},
	ClusterTasks{},
	ClusterStore{},
	ClusterISR{},
	ClusterGiven{},
	NSQServer{},
	NSQFlight{},
	NSQAnswers{},
	NSQOutput{},
	NSQWire{},
	NSQPoll{},
	AnswersQueue{},
	Backup{},
	NSQTargets{},
	NSQSketch{},
	SegmentLog{},
	SegmentMapping{},
	SegmentMappings{},
}
