"""A call of attention on its way from a public function to the extension."""
