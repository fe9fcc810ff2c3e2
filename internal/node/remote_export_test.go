package node

// RemoteWindowBytes is the window of a leader: the most bytes on their way to a client of another node. See
// internal/node/remote.
const RemoteWindowBytes = 1 << 20
