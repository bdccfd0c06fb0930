package installation

// A File is one that an installation is made of. Its path is within the
// installation's directory, with slashes: "walker@paris/bctl.yaml".
type File struct {
	Path   string
	Data   []byte
	Secret bool // readable by its owner alone
}
