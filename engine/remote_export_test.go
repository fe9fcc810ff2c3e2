package engine

// RemoteWindowBytes is the most that is on its way to a client of another node: see engine/remote.
const RemoteWindowBytes = 1 << 20
