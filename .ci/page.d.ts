// For the type check of the page's scripts: what browsers give them beyond TypeScript's own library, and what is looked up
// by a selector, whose type the caller knows.
interface Window {
  Plotly: any;
  Rose: Record<string, unknown>;
}

interface ParentNode {
  querySelector(selectors: string): any;
  querySelectorAll(selectors: string): NodeListOf<any>;
}

interface Document {
  getElementById(elementId: string): any;
  readonly activeElement: any;
}
