package errs

import "fmt"

// LimitError is an error about a value that is above a limit. All protocols refuse it with these words.
type LimitError struct {
	Err         error  // what became of the request; the LimitError is one of these
	What        string // what the value is
	Value, Most any
	Setting     string // of the node, or of the topic; empty: the limit is fixed
	OfTopic     bool   // Setting is one of the topic
}

func (e *LimitError) Error() string {
	if e.Err == nil {
		return e.Text()
	}
	return e.Err.Error() + ": " + e.Text()
}

func (e *LimitError) Unwrap() error { return e.Err }

// Text names the value, the limit and the setting.
func (e *LimitError) Text() string {
	text := fmt.Sprintf("%s is %v, and at most %v is allowed", e.What, e.Value, e.Most)
	if e.Setting == "" {
		return text + ", which no setting changes"
	}
	if e.OfTopic {
		return text + ": see the topic's setting " + e.Setting
	}
	return text + ": see the node's setting " + e.Setting
}
