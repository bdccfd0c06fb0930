package installation

// A File is a file of an installation. Its path is relative to the installation's directory, with
// slashes: "walker@paris/bctl.yaml".
type File struct {
	Path   string
	Data   []byte
	Secret bool // readable only by its owner
}
