package nfs3test

import (
	"cmp"

	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/rpc/rpctest"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// An args reads the arguments of a call.
type args struct{ *xdr.Decoder }

func (a args) handle() nfs3.Handle { return nfs3.Handle(a.Opaque(nfs3.MaxHandleBytes)) }
func (a args) name() string        { return string(a.Opaque(1 << 16)) }

// A procedure executes a call on the node of its first handle, and returns what follows the status.
type procedure struct {
	op  string
	run func(s *Server, n *Node, a args) ([]byte, nfs3.Status)
}

var procedures = map[uint32]procedure{
	1: {"GETATTR", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) { return appendAttr(nil, &n.Attr), 0 }},
	2: {"SETATTR", setAttr},
	3: {"LOOKUP", lookup},
	4: {"ACCESS", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
		return xdr.AppendUint32(appendPost(nil, n, true), a.Uint32()), 0
	}},
	5: {"READLINK", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
		return xdr.AppendOpaque(appendPost(nil, n, true), n.Target), 0
	}},
	6:  {"READ", read},
	7:  {"WRITE", write},
	8:  {"CREATE", create},
	9:  {"MKDIR", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) { return s.made(n, a.name(), nfs3.Directory, "") }},
	10: {"SYMLINK", symlink},
	12: {"REMOVE", remove},
	13: {"RMDIR", remove},
	14: {"RENAME", rename},
	15: {"LINK", link},
	16: {"READDIR", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) { return s.list(n, a, false) }},
	17: {"READDIRPLUS", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) { return s.list(n, a, true) }},
	19: {"FSINFO", fsInfo},
	21: {"COMMIT", func(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
		v := verifier(s.boot)
		return xdr.AppendFixed(appendWCC(nil, n), v[:]), 0
	}},
}

func (s *Server) handle(c *rpctest.Call) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := args{xdr.NewDecoder(c.Args)}
	if c.Program == nfs3.MountProgram {
		return s.mount(c.Procedure, a)
	}
	p, ok := procedures[c.Procedure]
	if !ok {
		return appendStatus(nfs3.StatusNotSupp)
	}
	s.counts[p.op]++
	n := s.nodes[a.handle()]
	if n == nil {
		return failed(nfs3.StatusBadHandle)
	}
	if n.stale {
		return failed(nfs3.StatusStale)
	}
	if s.deny != nil {
		if status := s.deny(p.op, n); status != nfs3.StatusOK {
			return failed(status)
		}
	}
	results, status := p.run(s, n, a)
	if status == nfs3.StatusOK && a.Err() != nil {
		status = nfs3.StatusInval
	}
	if status != nfs3.StatusOK {
		return failed(status)
	}
	return append(appendStatus(nfs3.StatusOK), results...)
}

// failed is a status and what follows it: no attributes, before or after.
func failed(status nfs3.Status) []byte { return append(appendStatus(status), make([]byte, 8)...) }

func (s *Server) mount(procedure uint32, a args) []byte {
	s.counts["MNT"]++
	n := s.Root
	if path := a.name(); procedure != 1 || path != "/export" {
		return appendStatus(nfs3.StatusNoEnt)
	}
	if s.deny != nil {
		if status := s.deny("MNT", n); status != nfs3.StatusOK {
			return appendStatus(status)
		}
	}
	b := xdr.AppendOpaque(appendStatus(nfs3.StatusOK), n.handle())
	return xdr.AppendUint32(xdr.AppendUint32(b, 1), nfs3.FlavorSys)
}

func setAttr(_ *Server, n *Node, a args) ([]byte, nfs3.Status) {
	for _, to := range []*uint32{&n.Attr.Mode, &n.Attr.UID, &n.Attr.GID} {
		if a.Bool() {
			*to = a.Uint32()
		}
	}
	if a.Bool() {
		n.Attr.Size = a.Uint64()
		n.Content = append(n.Content, make([]byte, n.Attr.Size)...)[:n.Attr.Size]
	}
	for _, to := range []*nfs3.Time{&n.Attr.Atime, &n.Attr.Mtime} {
		if a.Uint32() == 2 {
			*to = nfs3.Time{Sec: a.Uint32(), Nsec: a.Uint32()}
		}
	}
	if a.Bool() && (nfs3.Time{Sec: a.Uint32(), Nsec: a.Uint32()}) != n.Attr.Ctime {
		return nil, nfs3.StatusNotSync
	}
	return appendWCC(nil, n), 0
}

func lookup(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	if n.entries == nil {
		return nil, nfs3.StatusNotDir
	}
	found := n.entries[a.name()]
	if found == nil {
		return nil, nfs3.StatusNoEnt
	}
	b := xdr.AppendOpaque(nil, found.handle())
	return appendPost(appendPost(b, found, !s.behavior.NoAttributes), n, true), 0
}

func read(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	offset, count := a.Uint64(), a.Uint32()
	data := n.Content[min(offset, uint64(len(n.Content))):]
	size := int(count)
	if s.behavior.ShortReads > 0 {
		size = min(size, s.behavior.ShortReads)
	}
	eof := len(data) <= size
	data = data[:min(size, len(data))]
	switch {
	case s.behavior.EmptyReads:
		data, eof = nil, false
	case s.behavior.LyingReads:
		data = make([]byte, count+1)
	}
	b := xdr.AppendUint32(appendPost(nil, n, !s.behavior.NoAttributes), uint32(len(data)))
	return xdr.AppendOpaque(xdr.AppendBool(b, eof), data), 0
}

func write(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	offset, count, stable := a.Uint64(), a.Uint32(), a.Uint32()
	data := a.Opaque(int(count))
	end := offset + uint64(len(data))
	if n.Attr.Size < end {
		n.Content = append(n.Content, make([]byte, end-n.Attr.Size)...)
		n.Attr.Size = end
	}
	copy(n.Content[offset:], data)
	b := xdr.AppendUint32(appendWCC(nil, n), uint32(len(data)))
	v := verifier(s.boot)
	return xdr.AppendFixed(xdr.AppendUint32(b, stable), v[:]), 0
}

func create(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	name, how := a.name(), a.Uint32()
	if n.entries[name] != nil && how == 1 {
		return nil, nfs3.StatusExist
	}
	return s.made(n, name, nfs3.Regular, "")
}

func symlink(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	name := a.name()
	for range 4 {
		a.Bool() // mode, uid, gid and size are not set
	}
	a.Uint32()
	a.Uint32()
	return s.made(n, name, nfs3.Symlink, a.name())
}

// made adds a node and returns the results of its procedure.
func (s *Server) made(dir *Node, name string, kind nfs3.FileType, content string) ([]byte, nfs3.Status) {
	if kind != nfs3.Regular && dir.entries[name] != nil {
		return nil, nfs3.StatusExist
	}
	n := dir.entries[name]
	if n == nil {
		n = s.add(dir, name, kind, content)
	}
	b := xdr.AppendBool(nil, !s.behavior.NoHandles)
	if !s.behavior.NoHandles {
		b = xdr.AppendOpaque(b, n.handle())
	}
	return appendWCC(appendPost(b, n, !s.behavior.NoAttributes), dir), 0
}

func remove(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	name := a.name()
	if n.entries[name] == nil {
		return nil, nfs3.StatusNoEnt
	}
	if len(n.entries[name].entries) > 0 {
		return nil, nfs3.StatusNotEmpty
	}
	s.remove(n, name)
	return appendWCC(nil, n), 0
}

func rename(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	from, to, as := a.name(), s.nodes[a.handle()], a.name()
	if n.entries[from] == nil || to == nil {
		return nil, nfs3.StatusNoEnt
	}
	s.move(n, from, to, as)
	return appendWCC(appendWCC(nil, n), to), 0
}

func link(s *Server, n *Node, a args) ([]byte, nfs3.Status) {
	dir, name := s.nodes[a.handle()], a.name()
	if dir == nil || dir.entries[name] != nil {
		return nil, nfs3.StatusExist
	}
	dir.names = append(dir.names, name)
	dir.entries[name] = n
	n.Attr.Nlink++
	return appendWCC(appendPost(nil, n, true), dir), 0
}

func fsInfo(_ *Server, n *Node, _ args) ([]byte, nfs3.Status) {
	b := appendPost(nil, n, true)
	for _, v := range []uint32{64 << 20, 1 << 20, 4096, 64 << 20, 1 << 20, 4096, 64 << 10} {
		b = xdr.AppendUint32(b, v)
	}
	b = xdr.AppendUint64(b, 1<<63-1)
	return xdr.AppendUint32(xdr.AppendUint32(xdr.AppendUint32(b, 0), 1), 0x1b), 0
}

// list is READDIR and READDIRPLUS. The cookie of an entry is its place in the listing, from 1 on.
func (s *Server) list(n *Node, a args, plus bool) ([]byte, nfs3.Status) {
	cookie := a.Uint64()
	a.Fixed(8)
	if plus {
		a.Uint32()
	}
	maxBytes := int(a.Uint32())
	if plus && s.behavior.NoPlus {
		return nil, nfs3.StatusNotSupp
	}
	if n.entries == nil {
		return nil, nfs3.StatusNotDir
	}
	names, nodes := []string{".", ".."}, []*Node{n, n.parent}
	if s.behavior.NoDots {
		names, nodes = nil, nil
	}
	for _, name := range n.names {
		names, nodes = append(names, name), append(nodes, n.entries[name])
	}
	b := append(appendPost(nil, n, !s.behavior.NoAttributes), make([]byte, 8)...)
	at, count := int(min(cookie, uint64(len(names)))), 0
	most := cmp.Or(s.behavior.PageEntries, len(names))
	for ; at < len(names) && len(b) < maxBytes-300 && count < most && !s.behavior.EmptyPages; at++ {
		b = xdr.AppendUint64(xdr.AppendBool(b, true), nodes[at].Attr.FileID)
		next := uint64(at + 1)
		if s.behavior.Loop && at == len(names)-1 {
			next = 1
		}
		b = xdr.AppendUint64(xdr.AppendOpaque(b, names[at]), next)
		if plus {
			b = appendPost(b, nodes[at], !s.behavior.NoAttributes)
			if b = xdr.AppendBool(b, !s.behavior.NoHandles); !s.behavior.NoHandles {
				b = xdr.AppendOpaque(b, nodes[at].handle())
			}
		}
		count++
	}
	if s.grow != nil {
		s.grow(n, func(name string) { s.add(n, name, nfs3.Regular, "") })
	}
	end := at == len(names) && !s.behavior.Loop && !s.behavior.EmptyPages
	return xdr.AppendBool(xdr.AppendBool(b, false), end), 0
}
