package node

import "penstock/internal/node/datadir"

// GroundLooks is how often the engine has looked at its ground.
func GroundLooks(e *Engine) uint64 { return e.ground.looks.Load() }

// LookByHand makes the engine look at its ground only when LookAtGround is called, by one goroutine at a time.
func LookByHand(o *Options) { o.groundByHand = true }

// LookAtGround is one look.
func LookAtGround(e *Engine) { e.ground.look() }

// RewriteNodeFile replaces node.json, as the scrub does when it repairs it.
func RewriteNodeFile(e *Engine) (err error) {
	e.node.With(func(known *datadir.Node) { err = datadir.WriteTwice(e.disk, datadir.NodePath, known) })
	return err
}
