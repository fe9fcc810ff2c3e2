package node

import (
	"context"

	"penstock/internal/node/machine"
	"penstock/internal/node/partition"
	"penstock/internal/node/platform"
	"penstock/segment"
)

// SimulatedHost is a machine of a simulation, such as a stepped.Host of tests/support.
type SimulatedHost interface {
	platform.Host
	Kill() // ends everything that runs, as the end of a process does
}

// Inspector opens an engine in a simulation and reads its state, from the moment when the engine begins to open. Only
// the goroutine that steps the engine's host may call the Inspector's methods.
type Inspector struct {
	host  SimulatedHost
	e     *Engine         // nil: Open has not been called
	marks partition.Marks // scratch of EachMarks
}

func NewInspector(h SimulatedHost) *Inspector { return &Inspector{host: h} }

// Open is node.Open on the simulated host. Unlike the other methods, it must be called by one of the host's tasks.
//
// The engine's tasks call Options.Cluster.Store, whose methods may wait. The store must call Registration.Lease with
// instants time.Unix(0, World.Instant()).
func (i *Inspector) Open(ctx context.Context, o Options) (*Engine, error) {
	return openEngine(ctx, o, i.host, func(e *Engine) { i.e = e })
}

// Kill ends the engine as a killed process ends. It returns an error if a part of the engine still holds a buffer that
// only the end of a real process would free.
func (i *Inspector) Kill() error {
	i.host.Kill()
	e := i.e
	if e == nil {
		return nil
	}
	for _, t := range e.catalog.Topics() {
		for _, c := range t.Channels() {
			c.Local().ReleaseView()
		}
	}
	for _, pt := range e.store.Partitions() {
		pt.DropReads()
	}
	_ = e.release() // the simulation has replaced the disk
	return e.store.FreeBuffers()
}

// Disk returns this node's view of its disk, and the number of writes that have completed.
func (i *Inspector) Disk() (state machine.DiskState, done uint64) {
	_, done = i.e.pulse.Counts()
	return i.e.disks.State(), done
}

// EachMarks calls visit with the marks of each copy on this node, in the order in which the node got the copies. The
// marks are valid until visit returns. EachMarks allocates nothing.
func (i *Inspector) EachMarks(visit func(*partition.Marks)) {
	if i.e == nil {
		return
	}
	for _, pt := range i.e.store.Partitions() {
		pt.Marks(&i.marks)
		visit(&i.marks)
	}
}

// Partitions returns the copies on this node.
func (i *Inspector) Partitions() []partition.View {
	if i.e == nil {
		return nil
	}
	var all []partition.View
	for _, pt := range i.e.store.Partitions() {
		all = append(all, pt.View())
	}
	return all
}

// Log returns the log of a copy on this node; nil: there is none.
func (i *Inspector) Log(id segment.Identity) *segment.Log {
	for _, pt := range i.e.store.Partitions() {
		if pt.Identity() == id {
			return pt.Log()
		}
	}
	return nil
}
