package node

import (
	"penstock/internal/node/errs"
)

// Every partition costs each node of the cluster some KiB of memory, and a file, also where the node has no copy of it.
// So a node lets only MaxPartitions of them come about through it: those of all topics that it lists, and those that
// are being made. What exists already always opens.

// mayMake returns a LimitError if so many partitions more are too many: for the node, or for the token by that makes
// them or has made their topic ("": for no token). mu is held.
func (e *Engine) mayMake(by string, more int) error {
	n := int(e.shared.Partitions()) + more
	for name, cr := range e.creating {
		if e.topics[name] == nil {
			n += cr.partitions
		}
	}
	for t, to := range e.growing {
		n += max(to-t.Partitions(), 0)
	}
	if n <= e.current().MaxPartitions {
		return e.mayShare(by, more)
	}
	return &errs.LimitError{
		Err: errs.ErrTooManyPartitions, What: "with these the number of partitions of all topics", Value: n,
		Most: e.current().MaxPartitions, Setting: "max-partitions",
	}
}

// roomToGrow is mayMake for a topic that is to have to partitions.
func (e *Engine) roomToGrow(t *Topic, to int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mayGrow(t, to, "")
}

// mayGrow is roomToGrow with mu held, for the token by of ConfigureAs. More than MaxPartitions are refused by who makes
// them.
func (e *Engine) mayGrow(t *Topic, to int, by string) error {
	if more := to - max(t.Partitions(), e.growing[t]); more > 0 && to <= MaxPartitions {
		if by != "" {
			by = t.MadeBy()
		}
		return e.mayMake(by, more)
	}
	return nil
}

// grow is roomToGrow for the token by of ConfigureAs, and counts the partitions until done is called.
func (e *Engine) grow(t *Topic, to int, by string) (done func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.mayGrow(t, to, by); err != nil {
		return nil, err
	}
	if e.growing == nil {
		e.growing = map[*Topic]int{}
	}
	e.growing[t] = max(e.growing[t], to)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.growing, t)
	}, nil
}
