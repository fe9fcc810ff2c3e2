package node

// HoldHandOver makes a node of a cluster look as if it were handing its leaderships over already, until release.
func HoldHandOver(e *Engine) (release func()) {
	cn := e.members.(*clusterNode)
	cn.Leaving.Store(true)
	return func() {
		cn.Leaving.Store(false)
		e.news.Raise()
	}
}
