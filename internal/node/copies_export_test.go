package node

import "penstock/replicate"

// NumberOf returns the number of a node in its cluster.
func NumberOf(e *Engine) replicate.NodeID { return e.cluster.Self.ID }
