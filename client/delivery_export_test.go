package client

// SameSubscription says whether both deliveries belong to the same subscription. When a FinishThrough of one of them
// returned nil, the subscription was in place, and so all its deliveries up to that one are finished whose time was not
// over.
func (d *Delivery) SameSubscription(as *Delivery) bool { return d.sub == as.sub }
