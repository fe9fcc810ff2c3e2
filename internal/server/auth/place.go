package auth

import (
	"fmt"

	"penstock/internal/shares"
)

// Place is that of a connection among those of clients that are known: of all that there may be, one token has a share.
// A token that administers the node needs none. Its zero value is none. The caller serializes its calls.
type Place struct {
	of  *shares.Budget
	who string
}

// Enter takes a place for a client that has proved who it is, or says why it gets none. Leave gives it back.
func (p *Place) Enter(of *shares.Budget, who *Principal) error {
	name := who.Maker()
	if p.of != nil || name == "" {
		return nil
	}
	if err := of.TryTake(name, 1); err != nil {
		return fmt.Errorf("the token %s has as many connections as it may have on this node, %d (token-share of "+
			"max-connections): close some of them, or let an administrator raise the share", name, of.Share())
	}
	p.of, p.who = of, name
	return nil
}

// Leave gives the place back, if there is one.
func (p *Place) Leave() {
	if p.of != nil {
		p.of.Give(p.who, 1)
		p.of = nil
	}
}
