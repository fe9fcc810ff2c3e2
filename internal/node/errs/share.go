package errs

// shareError says that one token would take more than its share of a limit of the node. It is the error about that
// limit, too, so that protocols and programs treat it so.
type shareError struct {
	text  string
	limit error
}

func (e *shareError) Error() string        { return e.text }
func (e *shareError) Unwrap() error        { return e.limit }
func (e *shareError) Is(target error) bool { return target == ErrShare }

// ErrShare is each of the errors about a token's share.
var ErrShare error = &shareError{text: "engine: a token has as much as its share allows"}

// The errors about a token's share.
var (
	ErrTopicShare error = &shareError{"engine: the token has made as many topics as its share of MaxTopics allows: " +
		"nothing was made; delete one of them, or let an administrator raise the share", ErrTooManyTopics}
	ErrPartitionShare error = &shareError{
		"engine: the topics that the token has made have as many partitions as its " +
			"share of MaxPartitions allows: nothing was made; delete one of them, or let an administrator raise the share",
		ErrTooManyPartitions,
	}
	ErrStateShare error = &shareError{
		"engine: delayed messages and confirmations out of order of the topics that one " +
			"token has made take as much room as its share allows: nothing is deferred and no channel is made there; nothing " +
			"of this request was stored, everything else goes on; finish messages, or let an administrator raise the share",
		ErrStateFull,
	}
	ErrStoredShare error = &shareError{
		"engine: the disk is nearly full, and the topics that one token has made have more than its share of it: " +
			"publishing to them is refused, consuming goes on; nothing was stored, finish messages, or let an administrator " +
			"raise the share",
		ErrQuota,
	}
)
